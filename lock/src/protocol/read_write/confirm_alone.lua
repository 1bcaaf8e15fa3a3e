-- Confirms a granted hold by the lock's own key only, for a slot that is migrating.
--
-- KEYS[1]  the lock: a hash of mode -> read or write, and holder -> count
-- ARGV[1]  the hold
-- ARGV[2]  its lease from now on, in milliseconds
-- ARGV[3]  the highest fencing token that the client has seen
--
-- Reply: {token, lease in ms, 0}; 0 if the hold is gone, or reads and its timeout key is at the other node: then it ends with
-- that. The token is as the one of `ask_alone`.
--
-- May be repeated: a lease only ever grows, and a hold that is gone is never created again.

local known = redis.call('HMGET', KEYS[1], ARGV[1], ARGV[1] .. ':write')
local lease = tonumber(ARGV[2])
if known[1] then
  local prefix = string.find(KEYS[1], '{', 1, true) and KEYS[1] or '{' .. KEYS[1] .. '}'
  local timeout_key = prefix .. ':' .. ARGV[1] .. ':rwlock_timeout:1'
  local left = redis.pcall('PTTL', timeout_key)
  if type(left) ~= 'number' or redis.pcall('SET', timeout_key, '1', 'PX', math.max(left, lease)).err then
    return 0
  end
elseif not known[2] then
  return 0
end
redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), lease))
local time = redis.call('TIME')
return { math.max(tonumber(ARGV[3]) + 1, time[1] * 1000000 + time[2]), lease, 0 }
