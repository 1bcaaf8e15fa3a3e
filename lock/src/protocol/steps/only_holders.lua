-- The step of scripts that remove a lock, whoever holds it. DEL would delete anybody's data: HSCAN refuses a key of another type
-- with WRONGTYPE, and of a hash all fields must look like holders, an id with a colon and a count, or be the mode of a
-- read-write lock. Other data shows in the first few fields, so a large hash takes no long scan.
--
-- KEYS[1]  the lock: a hash of holder -> count
--
-- Returns the number of its fields, and an error in place of the reply if one of them is no lock's.

local function count_fields()
  local cursor, seen, holders = '0', 0, 0
  repeat
    local page = redis.call('HSCAN', KEYS[1], cursor)
    local fields = page[2]
    for i = 1, #fields, 2 do
      local field, value = fields[i], fields[i + 1]
      seen = seen + 1
      if string.find(field, '.:.') and string.find(value, '^%d+$') then
        holders = holders + 1
      elseif field ~= 'mode' or value ~= 'read' and value ~= 'write' then
        holders, page[1] = 0, '0'
        break
      end
    end
    cursor = page[1]
  until cursor == '0'
  if seen > 0 and holders == 0 then
    return seen, redis.error_reply('WRONGTYPE the key holds a hash whose fields are not the holders of a lock')
  end
  return seen
end

