"""What a client can do beside training and evaluation: each a file, and a line here. The client calls them in this
order; of those that wrap its training the last is the outermost."""

# by name, since this package is loaded for others of its files, too
FEATURES = {
    "encoder": "protosphere.client_app.encoder:EncoderSpace",
    "ensemble": "protosphere.client_app.features.ensemble:Ensemble",
    "confusion": "protosphere.client_app.features.confusion:Confusion",
    "roc auc": "protosphere.client_app.features.roc_auc:RocAuc",
    "privacy": "protosphere.client_app.private_client:Privacy",
}
