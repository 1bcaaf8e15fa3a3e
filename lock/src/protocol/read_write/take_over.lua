-- Takes a read-write lock over from the owner that holds it, which handed its id to this one on purpose.
--
-- KEYS     as of ask_read.lua; KEYS[4] absent to write
-- ARGV[1]  the hold: an id nobody ever used for another acquisition
-- ARGV[2]  the lease, in milliseconds
-- ARGV[3]  how long to keep the counter, in milliseconds; 0 = for ever, as Redisson expects
-- ARGV[4]  the id of the former owner: its holds are that and seven digits
--
-- Reply: {token, ms, 1 if others wait}  held by this hold, for so long from now
--        -1                             that owner does not hold it, or only reads where this one is to write; nothing was changed
--
-- May be repeated: a hold that is there already gets the same answer again. The former hold is gone with the first time, and
-- its process is told so by its next renewal.
--
-- Of an owner that writes, one that is to read takes over the writing: it excludes more than it must, never less.

local ttl = redis.call('PTTL', KEYS[1])
local known = ttl == -2 and {} or redis.call('HMGET', KEYS[1], 'mode', ARGV[1], ARGV[1] .. ':write')
local mode, reading, writing = known[1], known[2], known[3]
