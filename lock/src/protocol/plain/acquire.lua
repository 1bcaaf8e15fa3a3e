-- Takes a plain lock for one acquisition; or says for how long somebody else will hold it, and joins the line of those who wait.
--
-- KEYS[1]  the lock: a string, the id of its holder, as `SET key id NX PX lease` writes it
-- KEYS[2]  the counter of its fencing tokens: a decimal string
-- KEYS[3]  the line, a sorted set of tickets, to join it; absent to take the lock now or not at all
-- ARGV[1]  the hold: an id nobody ever used for another acquisition
-- ARGV[2]  the lease, in milliseconds
-- ARGV[3]  how long to keep the counter, in milliseconds
-- ARGV[4]  with a line: the ticket; '' to join it not
-- ARGV[5]  with a block of tokens: how many to reserve; the one in the reply is the first
--
-- Reply: n > 0         held by this hold, and this is its token
--        {token, ms}   held by this hold since an earlier request, for so long from now
--        -1 - n        held by another for n milliseconds more, or to be asked for again then
--        'ms ahead score time new'   with a line: the same; so many tickets ahead, the score of this one, the time in µs,
--                      and 1 if it was not there
--
-- May be repeated: a hold and a ticket that are there already get the same answer again. If the lock came free in between,
-- the repetition takes it and the ticket stays: the release names it then.
--
-- A lock that is absent is taken, whoever is in line: other libraries do so too.

local holder = redis.call('GET', KEYS[1])
if not holder then
  local token, refused = next_token(redis.call('TIME'), tonumber(ARGV[5] or 1))
  if refused then
    return refused
  end
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return tonumber(token)
end
local ttl = redis.call('PTTL', KEYS[1])
if holder == ARGV[1] then
  return held_by_us(ttl)
end
if KEYS[3] and ARGV[4] ~= '' then
  return join_line(holder, ARGV[4], nil, ttl)
end
return -1 - poll_within(holder, ttl, 0)
