"""The ServerApp that pyproject.toml names for Flower. It lies in the package, which Flower finds before its other
folders."""

from importlib import import_module

from protosphere.rooms import add_rooms

add_rooms()
app = import_module("protosphere.server_app.app").app
