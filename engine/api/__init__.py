"""The same acts as the command line for programs: the public Python API, and the MCP server for coding agents."""
