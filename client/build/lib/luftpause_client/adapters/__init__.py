"""Turns and telemetry out of what agents use already: openai and anthropic clients, LiteLLM, LangGraph.

Each adapter takes the client that it is given as it is, or imports its library when it is called.
"""
