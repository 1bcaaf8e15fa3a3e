-- Takes a lock for one acquisition; or says for how long somebody else will hold it, and joins the line of those who wait.
--
-- KEYS[1]  the lock: a hash of holder -> count, as Redisson lays it out
-- KEYS[2]  the counter of its fencing tokens: a decimal string
-- KEYS[3]  the line, a sorted set of tickets, to join it, or to leave a free lock to it beside Redisson; absent to take the
--          lock now or not at all
-- ARGV[1]  the hold: an id nobody ever used for another acquisition
-- ARGV[2]  the lease, in milliseconds
-- ARGV[3]  how long to keep the counter, in milliseconds; 0 = for ever, as Redisson expects; absent = 600000
-- ARGV[4]  with a line: the ticket; absent = the hold; '' to join it not
-- ARGV[5]  with a block of tokens: how many to reserve; the one in the reply is the first
--
-- Reply: n > 0         held by this hold, and this is its token
--        {token, ms}   held by this hold since an earlier request, for so long from now
--        0             held by another, and the key has no expiry
--        -1 - n        held by another for n milliseconds more
--        'ms ahead score time new'   with a line: held by another for ms more; so many tickets ahead, the score of this one,
--                      the time in µs, and 1 if it was not there. Text, which costs the server a third of an array
--
-- May be repeated: a hold and a ticket that are there already get the same answer again. If the lock came free in between,
-- the repetition takes it and the ticket stays: the release names it then.
--
-- A lock that is absent is taken, whoever is in line: while tickets wait it is absent only after an expiry, and each such
-- newcomer grants the first of them at its release. Not so with a line and beside Redisson: there a release may leave the
-- lock to whoever comes first of Redisson's waiters, and a process that locks in a loop would be that always.
--
-- A failing command does not undo the writes before it: everything that can fail (WRONGTYPE, a strange counter) comes
-- before the first write.
--
-- The code of an uncontended acquire comes first: every function that is made before it costs time, and so does every argument.

local call = redis.call
local ttl = call('PTTL', KEYS[1])
-- Beside Redisson a release may leave the lock to its waiters: whoever has a ticket then stands behind those in line.
local stands = ttl == -2 and ARGV[3] == '0' and KEYS[3] and redis.pcall('EXISTS', KEYS[3]) == 1
local text, old
if ttl == -2 and not stands and not ARGV[5] then
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
    return tonumber(text)
  end
end

