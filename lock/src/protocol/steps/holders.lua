-- The step of scripts that found the lock held by others: refuses a hash that is no lock. A lock's fields are holders, an id
-- with a colon and a count, beside the mode of a read-write lock.
--
-- KEYS[1]  the lock: a hash of holder -> count

local function foreign_data()
  local fields, holders = redis.call('HSCAN', KEYS[1], 0)[2], 0
  for i = 1, #fields, 2 do
    local field, value = fields[i], fields[i + 1]
    if string.find(field, '.:.') and string.find(value, '^%d+$') then
      holders = holders + 1
    elseif field ~= 'mode' or value ~= 'read' and value ~= 'write' then
      holders = -1
      break
    end
  end
  if holders <= 0 and #fields > 0 then
    return redis.error_reply('WRONGTYPE the key holds a hash whose fields are not the holders of a lock')
  end
end

