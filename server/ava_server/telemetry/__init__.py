"""What those who run a server see of it from outside: metrics to be scraped, and spans where an SDK takes them."""
