"""Can the ε of federated training be true? One run with canaries among the updates."""
