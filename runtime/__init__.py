"""Sub-agents that outlive the process: run journal, agent loop, tool calls, MCP and gRPC surfaces."""
