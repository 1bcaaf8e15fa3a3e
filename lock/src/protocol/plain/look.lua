-- Asks again for a plain lock that was asked for before: whether the ticket became the holder, how long it is still to wait, or
-- whether the lock came free unnoticed.
--
-- KEYS[1]  the lock: a string, the id of its holder
-- KEYS[2]  the counter of its fencing tokens: a decimal string
-- KEYS[3]  the line: a sorted set of tickets by place
-- ARGV[1]  the hold
-- ARGV[2]  the lease, in milliseconds
-- ARGV[3]  how long to keep the counter, in milliseconds
-- ARGV[4]  the ticket
-- ARGV[5]  its score, as an earlier answer told it; '' if none did
-- ARGV[6]  how grants are published: P, S or C, see the grant step
--
-- Reply: that of the acquire with a line; a lock that is taken now is {token, ms} too.
--
-- A ticket that is missing comes back with its old score: it was skipped, or lost in a failover. A lock that is free goes to
-- the first in line, not to whoever asks.
--
-- May be repeated: a holder gets the lease that is left, a ticket keeps its place.

local holder = redis.call('GET', KEYS[1])
local ttl = redis.call('PTTL', KEYS[1])
if holder == ARGV[1] then
  redis.pcall('ZREM', KEYS[3], ARGV[4])
  return held_by_us(ttl)
end
local score = ARGV[5] ~= '' and ARGV[5] or nil
if holder then
  return join_line(holder, ARGV[4], score, ttl)
end
local ahead, where = join(ARGV[4], score)
if not where then
  return ahead
end
local ticket, token, lease = grant(ARGV[6], ARGV[4])
if ticket == ARGV[4] then
  return { tonumber(token), lease }
end
if not ticket and token then
  return token
end
-- A first that could not be told takes the lock at its own look.
return string.format('%d %d %s', lease or 1000, redis.call('ZRANK', KEYS[3], ARGV[4]), where)
