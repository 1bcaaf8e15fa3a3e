-- The step that says what a hold of a mutex is, for the grant step. The step before it has the word of its message.
--
-- KEYS[1]  the lock: a hash of holder -> count, absent

-- Returns 1, or the error.
local function enter(hold, lease)
  local written = redis.pcall('HSET', KEYS[1], hold, '1')
  if type(written) ~= 'number' then
    return written
  end
  redis.call('PEXPIRE', KEYS[1], lease)
  return 1
end

local function leave(hold)
  redis.call('HDEL', KEYS[1], hold)
end

