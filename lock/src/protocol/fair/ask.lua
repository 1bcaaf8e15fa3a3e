-- Takes a fair lock for one acquisition, or joins those who wait for it, or asks again with a ticket.
--
-- KEYS[1]  the lock: a hash of holder -> count, as Redisson lays it out
-- KEYS[2]  the counter of its fencing tokens: a decimal string
-- KEYS[3]  the line: a sorted set of tickets by place, with Redisson also of the fences between their runs
-- KEYS[4]  with Redisson: its queue, a list of holders
-- KEYS[5]  with Redisson: the times when it removes them from the queue, a sorted set
-- ARGV[1]  the hold: an id nobody ever used for another acquisition
-- ARGV[2]  the lease, in milliseconds
-- ARGV[3]  how long to keep the counter, in milliseconds; 0 = for ever, as Redisson expects; absent = 600000
-- ARGV[4]  the ticket; absent to take the lock now or not at all
-- ARGV[5]  its score, as an earlier answer told it; '' if none did
-- ARGV[6]  how grants are published: P, S or C, see the grant step
-- ARGV[7]  its run, as an earlier answer told it; '' if none did
--
-- Reply: n > 0         held by this hold, and this is its token
--        {token, ms}   the same, for so long from now
--        0             held by another, and the key has no expiry
--        -1 - n        not held by this hold: others hold it for n milliseconds more, or wait for it; without a ticket only
--        'ms ahead score time new run'   in line, and held by others for ms; so many tickets ahead, the score of this one,
--                      the time in µs, 1 if it was not there, and its run if it has one
--
-- May be repeated: a hold and a ticket that are there already get the same answer again. A ticket that is missing comes back
-- with its old score. A lock that is free goes to the first in line, not to whoever asks, and is never taken past a line.
--
-- A failing command does not undo the writes before it: everything that can fail (WRONGTYPE, a strange counter) comes before
-- the first write.
--
-- The code of an uncontended acquire comes first: every function that is made before it costs time, and so does every argument.

local call = redis.call
local ttl = call('PTTL', KEYS[1])
local waiting, text, old
if ttl == -2 then
  if KEYS[4] then
    waiting = redis.pcall('EXISTS', KEYS[3], KEYS[4])
  else
    waiting = redis.pcall('EXISTS', KEYS[3])
  end
end
if waiting == 0 then
  -- The token step, for a counter that is behind the time: see there.
  local time = call('TIME')
  text = time[2]
  text = time[1] .. (#text == 6 and text or string.format('%06d', text))
  if ARGV[3] == '0' then
    old = redis.pcall('SET', KEYS[2], text, 'GET')
  else
    old = redis.pcall('SET', KEYS[2], text, 'PX', ARGV[3] or '600000', 'GET')
  end
  if not old or type(old) == 'string' and #old == #text and old < text and string.find(old, '^%d+$') then
    call('HSET', KEYS[1], ARGV[1], '1')
    call('PEXPIRE', KEYS[1], ARGV[2])
    if KEYS[4] and ARGV[7] and ARGV[7] ~= '' then
      -- It was in a line that is lost.
      redis.pcall('ZREM', KEYS[5], 'leasehold:' .. ARGV[7])
    end
    return tonumber(text)
  end
end

