-- Takes a read-write lock for reading, or says for how long others will hold it, and joins the line of those who wait. A later
-- request of the same wait is the same script: whether the ticket became a holder, or the lock came free unnoticed.
--
-- KEYS[1]  the lock: a hash of mode -> read or write, and holder -> count, as Redisson lays it out
-- KEYS[2]  the counter of its fencing tokens: a decimal string
-- KEYS[3]  the line: a sorted set of tickets by place
-- KEYS[4]  the timeout key of this hold, whose expiry is the end of its lease
-- ARGV[1]  the hold: an id nobody ever used for another acquisition
-- ARGV[2]  the lease, in milliseconds
-- ARGV[3]  how long to keep the counter, in milliseconds; 0 = for ever, as Redisson expects
-- ARGV[4]  how grants are published: P, S or C, see the serve step
-- ARGV[5]  with Redisson: its channel for releases; '' otherwise
-- ARGV[6]  the ticket; '' or absent to take the lock now or not at all
-- ARGV[7]  its score, as an earlier answer told it; '' if none did
--
-- Reply: n > 0            held by this hold, nobody waits, and this is its token
--        {token, ms, 1}   held by this hold for so long from now, and others wait; 0 instead of 1 if none do
--        0                held by another, and the key has no expiry
--        -1 - n           held by another for n milliseconds more
--        'ms ahead score time new'   with a ticket: held by another for ms more; so many tickets ahead, the score of this one,
--                      the time in µs, and 1 if it was not there
--
-- May be repeated: a hold and a ticket that are there already get the same answer again, and the lease is not extended.
--
-- A reader joins other readers while nobody waits. Behind a writer that waits it waits as well: so a writer waits for the
-- readers that hold the lock now, and for no others.
--
-- The token of a reader is the counter, that of the latest writer before it; the time where there is no counter.
--
-- A failing command does not undo the writes before it: everything that can fail comes before the first write, and the
-- timeout key before the field, which counts only with it.
--
-- The code of an uncontended acquire comes first: every function that is made before it costs time.

local reads = true
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
if not waiting and (ttl == -2 or mode == 'read' and ttl ~= -1 and not reading) then
  local counter, token = redis.pcall('GET', KEYS[2]), nil
  if type(counter) == 'string' and #counter == 16 and string.find(counter, '^[1-8]%d+$') then
    token = tonumber(counter)
  else
    local time = call('TIME')
    token = time[1] * 1000000 + time[2]
  end
  call('SET', KEYS[4], '1', 'PX', ARGV[2])
  if ttl == -2 then
    call('HSET', KEYS[1], 'mode', 'read', ARGV[1], '1')
  else
    call('HSET', KEYS[1], ARGV[1], '1')
  end
  if ttl < tonumber(ARGV[2]) then
    call('PEXPIRE', KEYS[1], ARGV[2])
  end
  return token
end

