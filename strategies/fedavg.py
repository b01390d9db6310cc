"""FedAvg (McMahan et al., AISTATS 2017): clients of one architecture share the mean of their models.

    client   trains w^r by CE for E epochs, to w_i; sends all weights
    server   w^{r+1} = sum_{i in S} n_i w_i / sum_{i in S} n_i;  with `client-weights` equal, the unweighted mean
    predict  the classifier of w^{r+1}: `received`; the other rules judge w_i, the client's model after training

Buffers (the running statistics of batch norms) are averaged like weights unless `share-buffers` is "own".
"""

from protosphere.strategies.weights import AVERAGING

METHOD = AVERAGING
