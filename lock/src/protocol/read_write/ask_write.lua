-- Takes a read-write lock for writing, or says for how long others will hold it, and joins the line of those who wait. A later
-- request of the same wait is the same script: whether the ticket became the holder, or the lock came free unnoticed.
--
-- KEYS[1]  the lock: a hash of mode -> read or write, and holder -> count, as Redisson lays it out
-- KEYS[2]  the counter of its fencing tokens: a decimal string
-- KEYS[3]  the line: a sorted set of tickets by place
-- ARGV     as of ask_read.lua
--
-- Reply: as of ask_read.lua
--
-- May be repeated: a hold and a ticket that are there already get the same answer again, and the lease is not extended.
--
-- A writer enters when nobody holds the lock and nobody waits before it. The first one in line tells the clients of all readers
-- that it waits, see the notify step.
--
-- A failing command does not undo the writes before it: everything that can fail comes before the first write.

local reads = false
local call = redis.call
local ttl = call('PTTL', KEYS[1])
local waiting = redis.pcall('ZCARD', KEYS[3])
-- A line that cannot be read has nobody in it.
waiting = type(waiting) == 'number' and waiting > 0
local mode, reading, writing
if ttl ~= -2 then
  local known = call('HMGET', KEYS[1], 'mode', ARGV[1], ARGV[1] .. ':write')
  mode, reading, writing = known[1], known[2], known[3]
end

