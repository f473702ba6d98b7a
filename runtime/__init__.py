"""Sub-agents that outlive the process: run journal, agent loop, tool calls, MCP and gRPC surfaces."""

import os

# Tool servers are started by forks that go on to another program. gRPC, which looks here when it is imported, would
# log a line for each.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
