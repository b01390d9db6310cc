"""What a client can do beside training: each a file."""
