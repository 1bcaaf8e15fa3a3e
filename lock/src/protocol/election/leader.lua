-- Tells who leads. Changes nothing.
--
-- KEYS[1]  the lock: a hash of holder -> count
-- KEYS[2]  the entry of the leader: a hash of id, n, token, value
--
-- Reply, an array: empty                    nobody holds the lock
--                  {ms}                     it is held for so long more, and its holder is not announced; -1 without an expiry
--                  {ms, id, token}          this leader leads for so long more, if it does not renew that
--                  {ms, id, token, value}   the same, with what it publishes
--
-- An entry counts only if its leader is the holder: one of a former leader is never told.

local refused = foreign_data()
if refused then
  return refused
end
local ttl = redis.call('PTTL', KEYS[1])
if ttl == -2 then
  return {}
end
local entry = redis.call('HMGET', KEYS[2], 'id', 'token', 'value')
if not entry[1] or redis.call('HEXISTS', KEYS[1], entry[1]) == 0 then
  return { ttl }
end
return { ttl, entry[1], entry[2], entry[3] or nil }
