"""What storeds does with real MongoDB deployments: a server alone, a replica set with users, one with TLS and users."""
