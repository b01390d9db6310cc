"""The data floor: data sets, who holds which rows of them, and one client's tensors."""

if __name__ == "data":
    raise ImportError("this is protosphere.data: import it by that name; a data/ of your own needs an __init__.py")
