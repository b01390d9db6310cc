"""Messages between server and clients, with the arrays and records in them."""
