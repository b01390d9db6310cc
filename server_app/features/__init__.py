"""The rounds of a run on the server: who is asked, what is sent, what is believed of the replies."""
