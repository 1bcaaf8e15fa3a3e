-- The state of a lock after a hold was taken from it.

local ttl, mode = -2, nil
if not is_free then
  local known = redis.pcall('PTTL', KEYS[1])
  ttl = type(known) == 'number' and known or -2
  known = ttl ~= -2 and redis.pcall('HGET', KEYS[1], 'mode')
  mode = type(known) == 'string' and known or nil
end

