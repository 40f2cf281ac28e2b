// "--replay" in the search box is a flag: the search would take the dashes before a word for "without this word".
"use strict";

const post = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...rest) {
  if (typeof message?.data === "string") message = { ...message, data: message.data.replace(/(^|\s)-+(?=\w)/g, "$1") };
  return post.call(this, message, ...rest);
};
