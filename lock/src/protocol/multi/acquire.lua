-- Takes several locks for one acquisition, or none of them. All keys are in one slot.
--
-- KEYS     of each lock in turn: the lock, a hash of holder -> count; the counter of its fencing tokens, a decimal string; and
--          beside Redisson the line of those who wait, a sorted set
-- ARGV[1]  the hold, the same for all: an id nobody ever used for another acquisition
-- ARGV[2]  the lease, in milliseconds
-- ARGV[3]  how long to keep the counters, in milliseconds; 0 = for ever, as Redisson expects
-- ARGV[4]  keys of each lock: 2, or 3 with lines
--
-- Reply: {1, token, ms, token, ms, …}   all are held by this hold, each with its token and for so long from now
--        {0, i, ms}                     the i-th is the first that another holds, for so long; -1 without an expiry
--        {0, i, -3, error}              the i-th cannot be taken by anybody, and why
-- Without a 1 in front nothing was taken.
--
-- May be repeated: what this hold has keeps its lease and its token, and what it lost meanwhile is taken anew.
--
-- A failing command does not undo the writes before it: all that can fail comes before the first hold. A counter that has
-- grown for nothing harms nobody.
--
-- A lock that is absent is taken, whoever is in line, as the mutex does: beside Redisson a free lock is left to its line.

local locks = #all_keys / per_lock
local kept = {}
for i = 1, locks do
  turn_to(i)
  local ttl = redis.call('PTTL', KEYS[1])
  if ttl ~= -2 then
    local mine = redis.pcall('HEXISTS', KEYS[1], ARGV[1])
    local refused = type(mine) == 'table' and mine or mine == 0 and foreign_data()
    if refused then
      return { 0, i, -3, refused.err }
    end
    if mine == 0 then
      return { 0, i, ttl }
    end
    kept[i] = ttl
  elseif KEYS[3] and redis.pcall('EXISTS', KEYS[3]) == 1 then
    return { 0, i, 5 }
  end
end

local reply, time = { 1 }, redis.call('TIME')
for i = 1, locks do
  turn_to(i)
  local token, lease, refused = nil, ARGV[2], nil
  if kept[i] then
    local known = held_by_us(kept[i])
    token, lease, refused = known[1], known[2], known.err and known
  else
    token, refused = next_token(time, 1)
  end
  if refused then
    return { 0, i, -3, refused.err }
  end
  reply[2 * i] = tonumber(token)
  reply[2 * i + 1] = tonumber(lease)
end

for i = 1, locks do
  if not kept[i] then
    turn_to(i)
    redis.call('HSET', KEYS[1], ARGV[1], '1')
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
  end
end
return reply
