-- Tells whether somebody else has a lock, or has had it since a certain grant. Changes nothing.
--
-- KEYS[1]  the lock: a hash of holder -> count
-- KEYS[2]  the counter of its fencing tokens: a decimal string
-- ARGV[1]  the token of the grant
--
-- Reply, one integer: 1 somebody has it or has had it, 0 not as far as can be told: Redisson's locks without tokens
-- leave no trace behind.

if redis.call('PTTL', KEYS[1]) ~= -2 then
  return 1
end
local counter = redis.call('GET', KEYS[2])
if counter and counter ~= ARGV[1] then
  return 1
end
return 0
