-- Tells who holds a lock and for how long. Changes nothing.
--
-- KEYS[1]  the lock: a hash of holder -> count
--
-- Reply, an array: the remaining lease in milliseconds, -1 if it has no expiry; a holder; its count. Empty if it is not
-- held.
--
-- A key of another type is refused by HSCAN with WRONGTYPE, and so is a hash with fields that are no holders here.

local cursor, seen, holder, count = '0', 0, nil, nil
repeat
  local page = redis.call('HSCAN', KEYS[1], cursor)
  local fields = page[2]
  for i = 1, #fields, 2 do
    local field, value = fields[i], fields[i + 1]
    seen = seen + 1
    if string.find(field, '.:.') and string.find(value, '^%d+$') then
      holder, count = field, value
    elseif field ~= 'mode' or value ~= 'read' and value ~= 'write' then
      return redis.error_reply('WRONGTYPE the key holds a hash whose fields are not the holders of a lock')
    end
  end
  cursor = page[1]
until cursor == '0' or holder
if seen == 0 then
  return {}
end
if not holder then
  return redis.error_reply('WRONGTYPE the key holds a hash whose fields are not the holders of a lock')
end
return { redis.call('PTTL', KEYS[1]), holder, count }
