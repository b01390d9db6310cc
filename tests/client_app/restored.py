"""A client's state as a run left it, from its store."""


def restored(client, run):
    """The newest one, with prototypes."""
    store, state = client.store(run), client._new_state()
    store.load_into(state, store.generations()[0], client.device)
    client._measure_late(state)
    return state
