"""The data package: data sets, the partition of their samples, and one client's tensors.

- forms/ reads a data set in any form as Samples; user_code.py calls a user's own code; domains.py joins several data
sets into one; decode.py does this once per machine, and cache.py stores the result.
- partition/ divides samples among clients, and each client's into training, validation and test samples.
- spec.py holds the settings that decide this; client_data.py makes a client's tensors, and augment.py changes them
during training.

Unusable data raise a DataError: one sentence that says what is wrong, where, and how to correct it.
"""

if __name__ == "data":
    raise ImportError("this is protosphere.data: import it by that name; a data/ of your own needs an __init__.py")
