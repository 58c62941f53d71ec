"""Web sites, proxies, cables, load balancers and certificates, for tests of what passes through a network."""
