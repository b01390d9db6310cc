"""The data floor: data sets, the partition of their samples, and one client's tensors.

- forms/ reads a data set in any form as Samples; user_code.py calls a user's own code; domains.py makes one data set of
  several; decode.py does so once per machine, and cache.py keeps it.
- partition/ divides samples among clients, and each client's into training, validation and test samples.
- spec.py has the settings that decide this; client_data.py makes a client's tensors, augment.py changes
  them in training.

Data that cannot be used are refused with a DataError, one sentence that says what, where and how to correct it.
"""

if __name__ == "data":
    raise ImportError("this is protosphere.data: import it by that name; a data/ of your own needs an __init__.py")
