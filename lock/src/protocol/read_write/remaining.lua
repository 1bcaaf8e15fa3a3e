-- Tells for how long a read-write lock stays taken. Changes nothing.
--
-- KEYS[1]  the lock: a hash of mode -> read or write, and holder -> count
--
-- Reply, one integer: milliseconds, -1 if it has no expiry, -2 if it is free

return foreign_data() or redis.call('PTTL', KEYS[1])
