"""The data floor: data sets, who holds which rows of them, and one client's tensors.

- forms/ reads a data set in whatever form it lies as samples (samples.py); decode.py does so once a machine, and
  cache.py keeps what was read; user_code.py is a form that somebody wrote, domains.py makes one data set of several.
- partition/ deals rows to clients, and each client's to its training, validation and test samples.
- client_data.py makes a client's tensors of its rows, augment.py changes them while it trains. from_settings.py says
  what a run's settings want of all this.
"""

if __name__ == "data":
    raise ImportError("this is protosphere.data: import it by that name; a data/ of your own needs an __init__.py")
