-- Turns a hold that reads into one that writes, if nobody else reads.
--
-- KEYS, ARGV  as of ask_read.lua; there is no ticket
--
-- Reply: n > 0            it writes, and this is its token
--        {token, ms, w}   it did already, for so long from now, and others wait if w is 1
--        0                the hold is gone
--        -1 - n           others read, for n milliseconds more
--
-- May be repeated: a hold that writes already gets the same answer. A late copy finds nothing that it could turn.
--
-- It may pass a writer that waits in line, which waits for this reader in any case.

local ttl, mode = redis.call('PTTL', KEYS[1]), 'read'
local known = redis.call('HMGET', KEYS[1], ARGV[1], ARGV[1] .. ':write')
local reading, writing = known[1], known[2]
