-- Asks whether a request has taken its permits. For a slot that is migrating, where the keys of a call must exist: nothing is
-- taken there.
--
-- KEYS[1]  what became of the request
-- ARGV[1]  its permits
-- ARGV[2]  how long the answer is remembered, in milliseconds
--
-- Reply: {ms}  it has
--        -251  it has not: asked again in 250 ms
--
-- May be repeated. Something is written for what is there: `WAIT` may follow.

if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], 60000)
  return { tonumber(ARGV[2]) }
end
return -251
