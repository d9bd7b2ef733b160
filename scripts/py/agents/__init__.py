"""What `make test-agents` asks of real agents, one module an agent."""
