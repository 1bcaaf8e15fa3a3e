-- The step with the word that begins the message of a grant of a mutex.

local word = 'G '

