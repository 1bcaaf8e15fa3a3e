-- The step that says what a hold of an election is, for the grant step: that of a mutex, under a word of its own.
--
-- KEYS[1]  the lock: a hash of holder -> count, absent

local word = 'GE '

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

