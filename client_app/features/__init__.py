"""What a client can do beside training and evaluation: each a file. Those that answer messages have a line here."""

# by name, since this package is loaded for others of its files, too
FEATURES = {
    "ensemble": "protosphere.client_app.features.ensemble:Ensemble",
    "confusion": "protosphere.client_app.features.confusion:Confusion",
}
