"""ServerlessLLM (OSDI'24): request-level auto-scaling, and its SJF extension."""
