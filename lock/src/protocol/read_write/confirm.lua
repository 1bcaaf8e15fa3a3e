-- Confirms a granted hold: it has its whole lease from now on.
--
-- KEYS[1]  the lock: a hash of mode -> read or write, and holder -> count
-- KEYS[2]  the counter of its fencing tokens: a decimal string
-- KEYS[3]  the line: a sorted set of tickets by place
-- KEYS[4]  the timeout key of this hold, for one that reads
-- ARGV[1]  the hold
-- ARGV[2]  its lease from now on, in milliseconds
--
-- Reply: {token, lease in ms, 1 if others wait}; 0 if the hold is gone. The token is of the latest grant, which the message may not
-- be.
--
-- May be repeated: a lease only ever grows, and a hold that is gone is never created again. Something is written in any case.

local ttl, mode = redis.call('PTTL', KEYS[1]), nil
local known = redis.call('HMGET', KEYS[1], ARGV[1], ARGV[1] .. ':write')
local reading, writing = known[1], known[2]
