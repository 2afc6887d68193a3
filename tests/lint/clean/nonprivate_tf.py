import tensorflow as tf

good = tf.data.Dataset.range(60000).shuffle(60000).batch(32)
small = tf.data.Dataset.range(60000).shuffle(100).batch(32)
odd = tf.data.Dataset.range(60000).batch(32).shuffle(100)
model.fit(x, y, batch_size=32, shuffle=True)
