"""What every service needs: ids, configuration, the pool file, the token."""
