-- Turns a hold that writes into one that reads, and lets in the readers that wait.
--
-- KEYS, ARGV  as of ask_read.lua; there is no ticket
--
-- Reply: {token, lease in ms, 1 if others wait}; 0 if the hold is gone
--
-- May be repeated: a hold that reads already gets the same answer, and is extended. A late copy finds nothing that it could turn.
--
-- The timeout key comes before the field, which counts only with it.

local ttl, mode = redis.call('PTTL', KEYS[1]), 'write'
local known = redis.call('HMGET', KEYS[1], ARGV[1], ARGV[1] .. ':write')
local reading, writing = known[1], known[2]
