-- The step of scripts that found a plain lock held by others. There is no telling a lock from other data: any string is a
-- holder. One of another library hands its lock on to nobody, so those who wait here poll while it is there: the remaining time
-- that they are told is short, the longer the more tickets are ahead, and so it is for a holder without an expiry.
--
-- KEYS[1]  the lock: a string, the id of its holder

local function foreign_data()
  return nil
end

local function poll_within(holder, ttl, ahead)
  ttl = ttl == -1 and 500 or math.max(ttl, 0)
  -- One of ours, which may be kept beyond its hold.
  if string.find((string.gsub(holder, ':kept$', '')), '^%x+%-%x+%-%x+%-%x+%-%x+:%d+$') then
    return ttl
  end
  return math.min(ttl, 500, 100 * (1 + ahead))
end

