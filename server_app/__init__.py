"""The ServerApp."""
