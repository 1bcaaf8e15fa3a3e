-- The step that lets the steps of one lock run for several in turn: they find the keys of a lock in KEYS and the arguments that
-- all locks share in ARGV, as in a script of that lock alone.

local all_keys, per_lock = KEYS, tonumber(ARGV[4])
local KEYS, ARGV = {}, { ARGV[1], ARGV[2], ARGV[3] }

local function turn_to(lock)
  for i = 1, per_lock do
    KEYS[i] = all_keys[(lock - 1) * per_lock + i]
  end
end

