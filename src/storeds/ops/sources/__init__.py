"""Where `pack` takes records from: folders, manifests, tar shards, datasets, stores."""
