"""What crosses between server and clients: messages, and the arrays and records in them."""
